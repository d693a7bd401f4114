"""What is built on a client: one for programs that use asyncio, and a record of what the server sees."""
