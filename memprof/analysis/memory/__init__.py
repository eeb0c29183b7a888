"""What the device's memory holds, when, and what for; its sums, and whether they are the compiler's."""
