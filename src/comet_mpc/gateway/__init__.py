"""HTTP beside the client, for programs in other languages and for a browser (extra `[gateway]`).

app    the requests it answers, and the page
guard  who may send them: programs and pages of this machine, and no page of another site

It holds texts in the clear. So it belongs to whoever owns the texts, and never beside the server.
"""
