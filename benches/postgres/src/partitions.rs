pub async fn run(_: &crate::Cluster, _: &crate::Options) -> crate::Outcome<()> {
    Ok(())
}
