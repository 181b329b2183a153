"""Turn measured costs into the numbers of an instance."""
