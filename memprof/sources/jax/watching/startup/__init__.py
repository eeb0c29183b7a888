"""The folder that is first on the module search path while Python starts a watched script."""
