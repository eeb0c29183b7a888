"""The folder that is first on the path of modules while Python starts a watched script."""
