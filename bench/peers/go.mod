module bywash-peers

go 1.26

require github.com/aws/aws-sdk-go v1.55.8
