"""people who sign up

Revision ID: 8c0a52b1f7de
Revises:
Create Date: 2026-11-30 16:52:31.204518

"""

import sqlalchemy as sa
from alembic import op

revision = "8c0a52b1f7de"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade the tables."""
    op.create_table(
        "demo_user",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("email", sa.String(255), nullable=False, unique=True),
        if_not_exists=True,
    )


def downgrade() -> None:
    """Take the upgrade back."""
    op.drop_table("demo_user", if_exists=True)
