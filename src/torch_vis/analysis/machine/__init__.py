"""Machines: their peaks, calibration, rooflines and predicted latency."""
