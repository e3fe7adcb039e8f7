"""Our kinds, and every word of the contract between the clusters: keys, names, rights."""
