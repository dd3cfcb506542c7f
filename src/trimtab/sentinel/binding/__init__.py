"""Binding: what a function is, which inputs it takes, and what it should compute."""
