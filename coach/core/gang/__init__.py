"""Gang scheduling: one job's pods are placed all or none, on one snapshot of the nodes.

`plan` says which pods get which node, or why none does; `packing` places them; `snapshot` is what the nodes have. The
Kubernetes plugins make the same decisions in Go: `tests/conformance/*.yaml` checks that both agree.
"""
