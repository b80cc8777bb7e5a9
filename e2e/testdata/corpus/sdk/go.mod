module example.com/sdk

go 1.26.0

require (
	github.com/mailgun/mailgun-go/v4 v4.23.0
	github.com/resend/resend-go/v3 v3.1.1
	github.com/sendgrid/sendgrid-go v3.16.1+incompatible
)

require (
	github.com/go-chi/chi/v5 v5.2.1 // indirect
	github.com/json-iterator/go v1.1.12 // indirect
	github.com/mailgun/errors v0.4.0 // indirect
	github.com/modern-go/concurrent v0.0.0-20180228061459-e0a39a4cb421 // indirect
	github.com/modern-go/reflect2 v1.0.2 // indirect
	github.com/sendgrid/rest v2.6.9+incompatible // indirect
	golang.org/x/net v0.62.0 // indirect
)
