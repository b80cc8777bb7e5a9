module example.com/resendgo

go 1.26

require github.com/resend/resend-go/v3 v3.1.1
