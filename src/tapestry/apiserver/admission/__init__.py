"""Who else has a say in a write: built-in rules, limits and quotas, policies, webhooks."""
