// Command sdk sends the corpus with the library that CLIENT names, then a thousand mails in as few calls as it
// allows, each with a value of its own. It prints a line for each mail, and one for a wrong key.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"os"
	"time"
)

type file struct {
	Name, Type string
	Params     map[string]string
	ContentID  string `json:"content_id"`
	Content    []byte
}

func (f *file) kind() string {
	kind := f.Type
	for name, value := range f.Params {
		kind += "; " + name + "=" + value
	}
	return kind
}

type letter struct {
	Subject, Name, From, Text, HTML string
	To, CC, BCC                     []string
	ReplyTo                         string `json:"reply_to"`
	MessageID                       string `json:"message_id"`
	Headers                         map[string]string
	Files                           []file
	At                              *time.Time
}

func (l *letter) sender() string { return l.Name + " <" + l.From + ">" }

func (l *letter) headers() map[string]string {
	h := maps.Clone(l.Headers)
	if l.MessageID != "" {
		h["Message-ID"] = l.MessageID
	}
	return h
}

// sdk is the library of a service.
type sdk interface {
	send(l *letter) (shown string, err error)
	many(people []person) error
}

// person is one of a thousand.
type person struct{ address, value string }

func main() {
	newSDK := map[string]func(key string) sdk{
		"resend-go": newResend, "mailgun-go": newMailgun, "sendgrid-go": newSendGrid,
	}[os.Getenv("CLIENT")]
	raw, err := os.ReadFile("../corpus.json")
	if err != nil {
		log.Fatal(err)
	}
	var letters []letter
	if err := json.Unmarshal(raw, &letters); err != nil {
		log.Fatal(err)
	}
	client := newSDK(os.Getenv("KEY"))
	for i := range letters {
		shown, err := client.send(&letters[i])
		if err != nil {
			log.Fatal(letters[i].Subject, ": ", err)
		}
		fmt.Println("sent", shown)
	}
	var people []person
	for i := range 1000 {
		people = append(people, person{fmt.Sprintf("many%d@demo.test", i), fmt.Sprintf("P<%d>", i)})
	}
	if err := client.many(people); err != nil {
		log.Fatal(err)
	}
	_, err = newSDK("wrong").send(&letters[0])
	fmt.Println("refused", err)
}
