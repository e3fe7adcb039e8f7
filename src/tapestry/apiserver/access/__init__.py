"""Access control of the API server: authentication, authorization, certificates, tokens and auditing."""
