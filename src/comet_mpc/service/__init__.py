"""Client and server: messages, one conversation, the processes around it, downloads, metrics."""
