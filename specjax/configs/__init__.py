"""Configurations that users start from, found by name: `specjax run pair`."""
