-- Leases are in memory.
DROP TABLE leases;
