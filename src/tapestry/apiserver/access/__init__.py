"""Who asks, and whether they may: users, their tokens and certificates, roles, and the record of it."""
