//! Tables of a database of clients.

use hawser_config::Pool;
use tokio_postgres::Client as Connection;

use super::Fault;

/// Migrations that convert the tables of version `n` to version `n + 1`.
const MIGRATIONS: [&str; 7] = [
    "
    CREATE TABLE hawser_client (
        name text PRIMARY KEY,
        inner_v4 text NOT NULL,
        inner_v6 text,
        key text,
        token text,
        expires_unix_s bigint NOT NULL,
        ports text NOT NULL,
        changed bigint NOT NULL,
        is_gone boolean NOT NULL
    );
    CREATE UNIQUE INDEX hawser_client_address ON hawser_client (inner_v4) WHERE NOT is_gone;
    CREATE UNIQUE INDEX hawser_client_key ON hawser_client (key) WHERE NOT is_gone;
    CREATE INDEX hawser_client_changed ON hawser_client (changed);
    CREATE TABLE hawser_hub (
        key text PRIMARY KEY,
        endpoints text NOT NULL,
        seen timestamptz NOT NULL
    );
",
    "
    CREATE TABLE hawser_usage (
        client text NOT NULL,
        day text NOT NULL,
        ledger text NOT NULL,
        received bigint NOT NULL,
        sent bigint NOT NULL,
        PRIMARY KEY (client, day, ledger)
    );
",
    "
    ALTER TABLE hawser_client ADD COLUMN cap_bps bigint;
    ALTER TABLE hawser_client ADD COLUMN quota_bytes bigint;
    CREATE INDEX hawser_usage_day ON hawser_usage (day);
",
    "
    ALTER TABLE hawser_client ADD COLUMN subnets text NOT NULL DEFAULT '';
",
    "
    ALTER TABLE hawser_hub ADD COLUMN applied bigint;
    ALTER TABLE hawser_hub ADD COLUMN stale_s bigint;
    CREATE TABLE hawser_freed (
        inner_v4 text PRIMARY KEY,
        freed_unix_s bigint NOT NULL
    );
",
    "
    CREATE TABLE hawser_log (
        id bigserial PRIMARY KEY,
        at_unix_s bigint NOT NULL,
        client text NOT NULL,
        change text NOT NULL,
        author text NOT NULL,
        host text NOT NULL
    );
",
    "
    ALTER TABLE hawser_client ADD COLUMN key_expires_unix_s bigint;
    ALTER TABLE hawser_client ADD COLUMN is_expiry_logged boolean NOT NULL DEFAULT false;
",
];

/// Migrates the tables to this program's version.
pub(super) async fn prepare(connection: &mut Connection, pool: Pool) -> Result<(), Fault> {
    let pool = text(pool);
    if !has_tables(connection).await? {
        // Two hubs may start concurrently: the second finds the row of the first.
        connection
            .batch_execute(
                "CREATE TABLE IF NOT EXISTS hawser_store (
                     id integer PRIMARY KEY CHECK (id = 1),
                     version integer NOT NULL,
                     changes bigint NOT NULL,
                     pool text NOT NULL
                 )",
            )
            .await?;
        connection
            .execute(
                "INSERT INTO hawser_store (id, version, changes, pool) VALUES (1, 0, 1, $1) \
                 ON CONFLICT (id) DO NOTHING",
                &[&pool],
            )
            .await?;
    }
    let transaction = connection.transaction().await?;
    let row = transaction
        .query_one("SELECT version, pool FROM hawser_store FOR UPDATE", &[])
        .await?;
    let (version, theirs): (i32, String) = (row.try_get(0)?, row.try_get(1)?);
    let version = known(version)?;
    if theirs != pool {
        return Err(Fault::Decided(anyhow::anyhow!(
            "the hubs of this database have the pools {theirs}, and this hub has {pool}: set the same pool and pool6 in hub.toml"
        )));
    }
    for migration in &MIGRATIONS[version..] {
        transaction.batch_execute(migration).await?;
    }
    if version < MIGRATIONS.len() {
        let newest = i32::try_from(MIGRATIONS.len()).expect("a few");
        transaction
            .execute("UPDATE hawser_store SET version = $1", &[&newest])
            .await?;
    }
    transaction.commit().await?;
    Ok(())
}

/// Returns the pools of the existing hubs.
pub(super) async fn pool_of(connection: &mut Connection) -> Result<Option<String>, Fault> {
    if !has_tables(connection).await? {
        return Ok(None);
    }
    let rows = connection
        .query("SELECT version, pool FROM hawser_store", &[])
        .await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    known(row.try_get(0)?)?;
    Ok(Some(row.try_get(1)?))
}

async fn has_tables(connection: &Connection) -> Result<bool, Fault> {
    let found = "SELECT 1 FROM information_schema.tables \
                 WHERE table_name = 'hawser_store' AND table_schema = current_schema()";
    Ok(!connection.query(found, &[]).await?.is_empty())
}

fn known(version: i32) -> Result<usize, Fault> {
    let version = usize::try_from(version).unwrap_or(usize::MAX);
    if version > MIGRATIONS.len() {
        return Err(Fault::Decided(anyhow::anyhow!(
            "the database has tables of version {version}, and this program supports {}: update the program",
            MIGRATIONS.len()
        )));
    }
    Ok(version)
}

/// Returns the pools in the form of the database: `100.96.0.0/16 fd00::/64`.
fn text(pool: Pool) -> String {
    let v6 = pool.v6.map(|(net, length)| format!(" {net}/{length}"));
    format!("{}/{}{}", pool.v4.0, pool.v4.1, v6.unwrap_or_default())
}
