"""Generated code of the contract `proto/vcluster/api/v1/vcluster_api.proto`. `make contract` writes it."""
