"""What XLA's `HloProto` says: the program and its order, which buffer lies where, and when it is live."""
