"""The FedMCC paper."""
