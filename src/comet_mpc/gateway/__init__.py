"""HTTP beside the client, for programs in other languages and for a browser (extra `[gateway]`).

It holds texts in the clear. So it belongs to whoever owns the texts, and never beside the server.
"""
