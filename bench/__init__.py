"""Measurements that are run by hand; nothing here is imported by the package."""
