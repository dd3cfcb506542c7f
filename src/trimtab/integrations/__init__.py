"""Frameworks that people already run: names and layout in, `trimtab.signal` and `trimtab.watch` in the middle."""
