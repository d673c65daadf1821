//! On real services: a Postgres of the tests' own, brought when it is missing. `WALRELAY_TEST_SOURCE` names another.

mod commands;
