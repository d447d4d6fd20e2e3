"""Turn arrays, labels and data frames into pictures; nothing here knows a model or a page."""
