"""One widget a file; what is more than a file is a package."""
