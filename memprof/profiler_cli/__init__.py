"""The command line: one verb per file. A verb parses, calls the library and renders; errors are left to main."""
