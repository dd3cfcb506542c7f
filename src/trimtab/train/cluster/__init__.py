"""Beyond one machine: Ray places and supervises what `runtimes/` has in processes. Nothing else imports ray."""
