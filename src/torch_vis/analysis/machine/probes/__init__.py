"""What a calibration runs: single operations over a range of sizes, small programs, and the clocks that time them."""
