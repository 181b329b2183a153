"""Figures of a schedule: its times, what it holds, what its stages wait for, and how it differs from another."""
