"""msctx inside other libraries: each library has a file of its own, which alone imports it."""
