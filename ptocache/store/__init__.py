"""The store: content-addressed files, an index of entries, and what keeps both in bounds."""
