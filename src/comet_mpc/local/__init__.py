"""All roles on this machine: the demonstration, evaluations and the audit. Nothing that serves imports them."""
