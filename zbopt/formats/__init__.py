"""Foreign files, one module a format."""
