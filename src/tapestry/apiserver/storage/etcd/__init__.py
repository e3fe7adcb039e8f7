"""Storage of objects in etcd, which several servers can share."""
