//! Records in PostgreSQL: one table, shared by any number of instances.
