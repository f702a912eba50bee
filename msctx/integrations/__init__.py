"""msctx inside other libraries: each file here works with one of them, and imports it alone."""
