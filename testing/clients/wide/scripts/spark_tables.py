"""Spark over S3A: a table written by one of its committers and read back, and files renamed and deleted."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

operation, *arguments = sys.argv[1:]


def at(prefix):
    return f"s3a://{os.environ['WIDE_BUCKET']}/{prefix}"


def session(committer="file"):
    jars = Path(os.environ["WIDE_JARS"])
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraClassPath": f"{jars}/*",
        "spark.sql.shuffle.partitions": "4",
        "spark.hadoop.fs.s3a.endpoint": os.environ["WIDE_URL"],
        "spark.hadoop.fs.s3a.endpoint.region": os.environ["AWS_REGION"],
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.access.key": os.environ["AWS_ACCESS_KEY_ID"],
        "spark.hadoop.fs.s3a.secret.key": os.environ["AWS_SECRET_ACCESS_KEY"],
        # Parts and buffers of the smallest size.
        "spark.hadoop.fs.s3a.multipart.size": "5M",
        "spark.hadoop.fs.s3a.multipart.threshold": "5M",
        "spark.hadoop.fs.s3a.committer.name": committer,
        "spark.hadoop.fs.s3a.committer.magic.enabled": "true",
        "spark.hadoop.mapreduce.outputcommitter.factory.scheme.s3a": "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory",
    }
    if any(jars.glob("spark-hadoop-cloud_*.jar")):
        protocol = "org.apache.spark.internal.io.cloud"
        settings["spark.sql.sources.commitProtocolClass"] = f"{protocol}.PathOutputCommitProtocol"
        settings["spark.sql.parquet.output.committer.class"] = f"{protocol}.BindingParquetOutputCommitter"
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def drawn(spark, count):
    """Rows that any process computes again: the bytes are a chain of digests of the number."""
    data = f.concat(*[f.sha2(f.concat(f.col("id").cast("string"), f.lit(f"-{step}")), 512) for step in range(9)])
    name = f.concat(f.lit("näme-"), (f.col("id") % 1000).cast("string"))
    return spark.range(int(count)).repartition(2).select("id", name.alias("name"), data.alias("data"))


def digest(table):
    return table.select(f.count("*"), f.sum("id"), f.sum(f.xxhash64("id", "name", "data").cast("decimal(38,0)"))).first()


def write(prefix, count, committer):
    spark = session(committer)
    rows = drawn(spark, count)
    rows.write.option("compression", "none").parquet(at(prefix) + "/table")
    assert digest(spark.read.parquet(at(prefix) + "/table")) == digest(rows)
    rows.limit(10).write.mode("overwrite").parquet(at(prefix) + "/table")
    assert spark.read.parquet(at(prefix) + "/table").count() == 10
    # Through Hadoop's oldest interface, whose only committer renames.
    rows.select("data").rdd.map(lambda row: row.data).saveAsTextFile(at(prefix) + "/text")
    assert spark.read.text(at(prefix) + "/text").count() == int(count)
    spark.stop()


def change(prefix, count):
    spark = session()
    rows = drawn(spark, count).withColumn("part", f.col("id") % 40)
    rows.write.partitionBy("part").parquet(at(prefix) + "/many")
    hadoop = spark._jvm.org.apache.hadoop.fs
    path = hadoop.Path(at(prefix))
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    assert files.rename(hadoop.Path(path, "many"), hadoop.Path(path, "renamed"))
    assert digest(spark.read.parquet(at(prefix) + "/renamed")) == digest(rows)
    assert not files.exists(hadoop.Path(path, "many"))
    assert files.delete(hadoop.Path(path, "renamed"), True)
    spark.stop()


def version():
    import pyspark

    spark = session()
    hadoop = spark._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
    print(f"{pyspark.__version__}, Hadoop {hadoop}")
    spark.stop()


globals()[operation](*arguments)
