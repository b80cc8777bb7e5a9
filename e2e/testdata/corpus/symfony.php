<?php
// Sends the corpus with a transport of Symfony Mailer. Laravel and Nextcloud use it, too.
require 'Symfony/Component/Mailer/autoload.php';
require 'Symfony/Component/HttpClient/autoload.php';
foreach (['Mailgun', 'Postmark', 'Sendgrid'] as $bridge) {
    require "Symfony/Component/Mailer/Bridge/$bridge/autoload.php";
}

use Symfony\Component\HttpClient\HttpClient;
use Symfony\Component\Mailer\Bridge;
use Symfony\Component\Mailer\Transport\Dsn;
use Symfony\Component\Mailer\Transport\Smtp\EsmtpTransportFactory;
use Symfony\Component\Mailer\Transport\TransportInterface;
use Symfony\Component\Mime\Address;
use Symfony\Component\Mime\Email;

function transport(string $scheme, string $key): TransportInterface
{
    $http = HttpClient::create(['cafile' => getenv('CA')]);
    [$host, $port] = explode(':', getenv('HTTPS'));
    if (str_starts_with($scheme, 'smtp')) {
        $smtp = new Dsn($scheme, getenv('HOST'), 'apikey', $key, getenv($scheme === 'smtps' ? 'SSL_PORT' : 'PORT'));
        $transport = (new EsmtpTransportFactory())->create($smtp);
        $transport->getStream()->setStreamOptions(['ssl' => ['cafile' => getenv('CA')]]);
        return $transport;
    }
    $factory = match (strtok($scheme, '+')) {
        'mailgun' => Bridge\Mailgun\Transport\MailgunTransportFactory::class,
        'postmark' => Bridge\Postmark\Transport\PostmarkTransportFactory::class,
        'sendgrid' => Bridge\Sendgrid\Transport\SendgridTransportFactory::class,
    };
    return (new $factory(null, $http))->create(new Dsn($scheme, $host, $key, 'demo.test', (int) $port));
}

$scheme = getenv('SCHEME');
$transport = transport($scheme, getenv('KEY'));
foreach (json_decode(file_get_contents('corpus.json'), true) as $letter) {
    $mail = (new Email())->from(new Address($letter['from'], $letter['name']))->subject($letter['subject'])
        ->to(...$letter['to'])->cc(...$letter['cc'] ?? [])->bcc(...$letter['bcc'] ?? []);
    if ($letter['reply_to']) {
        $mail->replyTo($letter['reply_to']);
    }
    if ($letter['text']) {
        $mail->text($letter['text']);
    }
    if ($letter['html']) {
        $mail->html($letter['html']);
    }
    if ($letter['message_id']) {
        $mail->getHeaders()->addIdHeader('Message-ID', trim($letter['message_id'], '<>'));
    }
    foreach ($letter['headers'] ?? [] as $name => $value) {
        $mail->getHeaders()->addTextHeader($name, $value);
    }
    if ($letter['at']) {
        $name = $scheme === 'mailgun+api' ? 'o:deliverytime' : 'X-Mailgun-Deliver-By';
        $mail->getHeaders()->addTextHeader($name, (new DateTime($letter['at']))->format(DATE_RFC2822));
    }
    foreach ($letter['files'] ?? [] as $file) {
        $content = base64_decode($file['content']);
        $method = $file['params']['method'] ?? '';
        $type = $file['type'] . ($method ? "; method=$method" : '');
        if ($file['content_id']) {
            $mail->embed($content, $file['content_id'], $type); // its content id is its name
        } else {
            $mail->attach($content, $file['name'], $type);
        }
    }
    echo 'sent ', $transport->send($mail)->getMessageId(), "\n";
}
try {
    $transport->send((new Email())->from('shop@demo.test')->to('a@x_y.test')->subject('wrong')->text('t'));
} catch (Exception $e) {
    echo 'wrong ', $e->getMessage(), "\n";
}
try {
    transport($scheme, 'wrong')->send($mail);
} catch (Exception $e) {
    echo 'refused ', $e->getMessage(), "\n";
}
