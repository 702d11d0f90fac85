"""A real SGLang server as a child process."""
