"""orders

Revision ID: 65bee3d8dae0
Revises:
Create Date: 2026-11-30 16:45:07.794472

"""

import sqlalchemy as sa
from alembic import op

revision = "65bee3d8dae0"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade the tables."""
    op.create_table(
        "example_order",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("item", sa.String(length=100), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def downgrade() -> None:
    """Take the upgrade back."""
    op.drop_table("example_order")
