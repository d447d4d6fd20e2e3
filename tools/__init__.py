"""Programs that generate files: pictures, pages and notebooks of the documentation, and its tables."""
