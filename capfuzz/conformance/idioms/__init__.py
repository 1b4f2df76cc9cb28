"""The idioms, one family a module."""
