"""What the handler keeps on disk: the journal, snapshots, checkpoints."""
