"""One error type: a reason from a closed list, and a message for the person who runs the job."""

#: Every `error.reason` an answer can carry. docs/project/worker-protocol.md says what each means and who should act.
REASONS = frozenset(
    {
        "BadRequest",
        "Busy",
        "ModelInvalid",
        "ModelTimeout",
        "DataMissing",
        "DataInvalid",
        "LossNotFinite",
        "CheckpointMissing",
        "CheckpointInvalid",
        "StorageFailed",
        "OutOfMemory",
        "PeerLost",
        "DeadlineExceeded",
        "Internal",
    }
)

#: Longer messages are cut: they travel in one packet and end on one line of a status table.
LONGEST_MESSAGE = 2000


class TrainingError(Exception):
    """A failure with a reason of REASONS and a plain message. `traced`: the function's log has its traceback."""

    def __init__(self, reason: str, message: str, *, traced: bool = False) -> None:
        if reason not in REASONS:
            raise ValueError(f"unknown reason {reason!r}")
        self.reason = reason
        self.traced = traced
        self.message = message[:LONGEST_MESSAGE]
        super().__init__(f"{reason}: {self.message}")

    def as_dict(self) -> dict:
        """What an answer's `error` field holds."""
        return {"reason": self.reason, "message": self.message} | ({"traced": True} if self.traced else {})
