"""Where Alembic meets the log: it migrates the connection that it is given, or the database named by `-x url=...`."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, create_engine

from controlplane.eventlog.schema import VERSION_TABLE


def migrate(connection: Connection) -> None:
    """Run the revisions that were asked for inside the transaction of the connection."""
    context.configure(connection=connection, version_table=VERSION_TABLE)
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    """Use the connection of the opening log; from the command line, open one."""
    given = context.config.attributes.get("connection")
    if isinstance(given, Connection):
        migrate(given)
        return
    url = context.get_x_argument(as_dictionary=True).get("url")
    if url is None:
        raise SystemExit("name the database: alembic -x url=sqlite:///log.db ...")
    with create_engine(url).begin() as connection:
        migrate(connection)


main()
