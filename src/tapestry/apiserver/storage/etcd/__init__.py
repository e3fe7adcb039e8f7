"""etcd as the place where objects are kept: several servers share it."""
