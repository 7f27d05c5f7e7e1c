"""The tables and figures of the FedMCC paper."""
