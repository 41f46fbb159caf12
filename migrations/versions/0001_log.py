"""The log: events that only grow, the head that guards appending, snapshots that may go at any time.

Digests are text, so that a person can compare them in any database shell; as raw bytes they would save 64 of some 430
bytes a record and make reading slower. There is no index beside the position: one on correlation costs a third of the
appends, and whoever looks for one job reads the log once.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# The engine itself refuses. REPLACE is an update in disguise that fires no trigger for update or delete in SQLite; it
# is stopped by refusing every position that is not behind the last. Refusing gaps too would cost a tenth of bulk
# appends, and reading finds them.
SQLITE_GUARDS = (
    """
    CREATE TRIGGER events_refuse_update BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'the event log is append-only: UPDATE is refused'); END
    """,
    """
    CREATE TRIGGER events_refuse_delete BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'the event log is append-only: DELETE is refused'); END
    """,
    """
    CREATE TRIGGER events_refuse_replace BEFORE INSERT ON events
    WHEN EXISTS (SELECT 1 FROM events WHERE position >= NEW.position)
    BEGIN SELECT RAISE(ABORT, 'the event log is append-only: only a position behind the last is accepted'); END
    """,
    """
    CREATE TRIGGER head_refuse_return BEFORE UPDATE ON head WHEN NEW.position < OLD.position
    BEGIN SELECT RAISE(ABORT, 'the head of the event log never goes back'); END
    """,
    """
    CREATE TRIGGER head_refuse_delete BEFORE DELETE ON head
    BEGIN SELECT RAISE(ABORT, 'the head of the event log is never deleted'); END
    """,
)

# In PostgreSQL the primary key and the compare-and-set on the head already give every position to one writer.
POSTGRESQL_GUARDS = (
    """
    CREATE FUNCTION tidegate_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'the event log is append-only: % on % is refused', TG_OP, TG_TABLE_NAME; END $$
    """,
    """
    CREATE TRIGGER events_refuse BEFORE UPDATE OR DELETE OR TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_refuse()
    """,
    """
    CREATE TRIGGER head_refuse_return BEFORE UPDATE ON head
    FOR EACH ROW WHEN (NEW.position < OLD.position) EXECUTE FUNCTION tidegate_refuse()
    """,
    """
    CREATE TRIGGER head_refuse_delete BEFORE DELETE OR TRUNCATE ON head
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_refuse()
    """,
)


ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""SQLite keeps rows in the order of a key only if it is declared INTEGER."""


def upgrade() -> None:
    """Make an empty log."""
    op.create_table(
        "events",
        sa.Column("position", ROW_NUMBER, primary_key=True, autoincrement=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sa.Column("recorded_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("correlation", sa.Text(), nullable=False),
        sa.Column("causation", sa.BigInteger(), nullable=True),
        sa.Column("previous", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
    )
    head = op.create_table(
        "head",
        sa.Column("one", sa.Integer(), sa.CheckConstraint("one = 1"), primary_key=True, autoincrement=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
    )
    op.create_table(
        "snapshots",
        sa.Column("serial", ROW_NUMBER, primary_key=True, autoincrement=True),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("core", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    )
    op.bulk_insert(head, [{"one": 1, "position": 0, "digest": "0" * 64}])
    guards = SQLITE_GUARDS if op.get_bind().dialect.name == "sqlite" else POSTGRESQL_GUARDS
    for guard in guards:
        op.execute(guard)


def downgrade() -> None:
    """There is no way back from the first revision."""
    raise NotImplementedError("the first revision is not undone: delete the database instead")
